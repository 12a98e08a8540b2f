"""A reversible RoBERTa (Liu et al. 2019) for masked language modelling: the encoder of PaReprop's language experiments.

    embedding     tokens [B, T] -> token + position embedding, LayerNorm, dropout; [B, T, C], the same in both streams
    blocks        y1 = x1 + attention(LayerNorm(x2)),  y2 = x2 + MLP(LayerNorm(y1)), as in RevViT
    head          streams concatenated, LayerNorm of 2C channels, linear to C, GELU, LayerNorm, linear to the vocabulary

RoBERTa normalises after each skip connection; a reversible block has to normalise inside its functions (pre-LayerNorm).
RoBERTa ties the last linear layer to the token embedding. Stages update independently, so here the head has untied
weights: vocabulary x C additional parameters. Sequences are full, as in RoBERTa's pretraining, so attention has no
padding mask. Positions count from 0.

The loss is the mean cross-entropy over the masked positions. The target of every other position is `IGNORED`.
"""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.errors import check_int, check_number
from petra_core.models.streams import ConcatStreams, DuplicateStreams
from petra_core.stages import BufferedStage, HeadStage, Stage
from reproduce.models.revvit import flat_block
from reproduce.models.sizes import REVROBERTA, TransformerSize, find_size
from reproduce.models.transformer import initialise, reversible_blocks

VOCABULARY = 50_265  # size in the published models: GPT-2's byte pairs and a few special tokens
IGNORED = -100  # target of a position without loss: the default `ignore_index` of PyTorch


def masked_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy over the positions whose target is not `IGNORED`, or 0 if there are none.

    Args:
        logits: Logits [B, T, V].
        target: Token ids or `IGNORED`, [B, T].

    Raises:
        ValueError: If the shapes do not match.

    """
    if logits.dim() != 3 or logits.shape[:2] != target.shape:
        raise ValueError(
            f"logits [batch, tokens, vocabulary] need targets [batch, tokens], got {list(logits.shape)} and "
            f"{list(target.shape)}"
        )
    total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (target != IGNORED).sum().clamp(min=1)


class TokenEmbedding(nn.Module):
    """Embedding of token ids [B, T]: the normalised sum of token and position embeddings [B, T, C].

    Args:
        vocabulary: Number of tokens in the vocabulary.
        width: Channels C.
        length: Maximum sequence length T.

    """

    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(check_int("vocabulary", vocabulary, 2), width)
        self.position = nn.Embedding(check_int("length", length, 1), width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        length = self.position.num_embeddings
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.shape[1] > length:
            raise ValueError(
                f"TokenEmbedding takes integer token ids [batch, at most {length} tokens], got {tokens.dtype} "
                f"{list(tokens.shape)}; truncate the sequences, or give the constructor a larger length"
            )
        result: Tensor = self.norm(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        return result


def revroberta(
    size: str | TransformerSize,
    *,
    vocabulary: int = VOCABULARY,
    length: int = 512,
    dropout: float = 0.1,
) -> list[Stage]:
    """Build a reversible RoBERTa for masked language modelling.

    Args:
        size: Name of a size in `reproduce.models.sizes.REVROBERTA`, or a `TransformerSize`.
        vocabulary: Number of tokens in the vocabulary.
        length: Maximum sequence length.
        dropout: Dropout rate after the embedding, of attention probabilities and after every residual function.

    Returns:
        The J = depth + 2 stages. They take token ids [B, T] and targets [B, T] (`masked_cross_entropy`), and return
        logits [B, T, vocabulary].

    Raises:
        ValueError: If the size is unknown or a number is out of range.
        TypeError: If a number has the wrong type.

    """
    size = find_size("RevRoBERTa", REVROBERTA, size)
    check_number("dropout", dropout, below=1.0)
    width = size.width
    stem = nn.Sequential(
        TokenEmbedding(vocabulary, width, length), *([nn.Dropout(dropout)] if dropout else []), DuplicateStreams()
    )
    head = OrderedDict[str, nn.Module](
        fuse=ConcatStreams(-1),
        fused_norm=nn.LayerNorm(2 * width),
        dense=nn.Linear(2 * width, width),
        gelu=nn.GELU(),
        norm=nn.LayerNorm(width),
        decoder=nn.Linear(width, vocabulary),
    )
    blocks = (flat_block(size, dropout=dropout) for _ in range(size.depth))
    return initialise(
        [
            BufferedStage(stem),
            *reversible_blocks(blocks),
            HeadStage(nn.Sequential(head), loss=masked_cross_entropy),
        ]
    )
