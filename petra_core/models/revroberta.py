"""A reversible RoBERTa (Liu et al. 2019) for masked language modelling: the encoder of PaReprop's language rows.

    embedding     tokens [B, T] -> token + position embedding, LayerNorm, dropout; [B, T, C], the same in both streams
    blocks        y1 = x1 + attention(LayerNorm(x2)),  y2 = x2 + MLP(LayerNorm(y1)), as in RevViT
    head          streams concatenated, LayerNorm of 2C channels, linear to C, GELU, LayerNorm, linear to the vocabulary

RoBERTa normalises after each skip; a reversible block has to do it inside its functions, before them. RoBERTa ties the
last linear layer to the token embedding; stages update on their own, so here the head has weights of its own, which are
vocabulary x C parameters more. Sequences are full, as in RoBERTa's pretraining: there is no mask of padding in the
attention, and positions count from 0.

The loss is the mean cross-entropy over the masked positions alone. The targets of all others are `IGNORED`.
"""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.arguments import check_int, check_number
from petra_core.models.revvit import flat_block
from petra_core.models.streams import ConcatStreams, DuplicateStreams
from petra_core.models.transformer import initialise, reversible_blocks
from petra_core.sizes import REVROBERTA as SIZES
from petra_core.sizes import TransformerSize, find_size
from petra_core.stages import BufferedStage, HeadStage, Stage

__all__ = ["IGNORED", "SIZES", "VOCABULARY", "masked_cross_entropy", "revroberta"]

VOCABULARY = 50_265  # of the published models: byte pairs of GPT-2 and a few special tokens
IGNORED = -100  # the target of a position without loss, PyTorch's `ignore_index`


def masked_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over the positions whose target is not `IGNORED`; 0 if there are none.

    Args:
        logits: [B, T, V].
        target: [B, T], token numbers or `IGNORED`.

    Raises:
        ValueError: the shapes do not fit.

    """
    if logits.dim() != 3 or logits.shape[:2] != target.shape:
        raise ValueError(
            f"logits [batch, tokens, vocabulary] need targets [batch, tokens], got {list(logits.shape)} and "
            f"{list(target.shape)}"
        )
    total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (target != IGNORED).sum().clamp(min=1)


class TokenEmbedding(nn.Module):
    """Token numbers [B, T] -> token and position embeddings [B, T, C], summed and normalised.

    Args:
        vocabulary: number of tokens.
        width: C.
        length: largest T.

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
                f"takes integer token numbers [batch, at most {length} tokens], got {tokens.dtype} "
                f"{list(tokens.shape)}; cut the text, or give the constructor a larger length"
            )
        result: Tensor = self.norm(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        return result


def revroberta(
    size: str | TransformerSize,
    *,
    vocabulary: int = VOCABULARY,
    length: int = 512,
    dropout: float = 0.1,
    split_blocks: bool = False,
) -> list[Stage]:
    """The stages of a reversible RoBERTa for masked language modelling.

    Args:
        size: a name in `SIZES`, or any `TransformerSize`.
        vocabulary: number of tokens.
        length: largest number of tokens in a sequence.
        dropout: rate after the embedding, of attention probabilities and after every residual function.
        split_blocks: attention and MLP as stages of their own.

    Returns:
        J = depth + 2 stages, with split_blocks 2 depth + 2. They take token numbers [B, T] and targets [B, T]
        (`masked_cross_entropy`), and return logits [B, T, vocabulary].

    Raises:
        ValueError: an unknown size or a number out of its range.
        TypeError: a number of another type.

    """
    size = find_size("RevRoBERTa", SIZES, size)
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
    blocks = (flat_block(size, dropout=dropout, drop_path=0.0) for _ in range(size.depth))
    return initialise(
        [
            BufferedStage(stem),
            *reversible_blocks(blocks, split=split_blocks),
            HeadStage(nn.Sequential(head), loss=masked_cross_entropy),
        ]
    )
