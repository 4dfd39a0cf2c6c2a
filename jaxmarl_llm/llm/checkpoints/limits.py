"""The longest sequence of a loaded model."""

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError


def limited_length(trained: int, window: int | None, wanted: int | None) -> int:
    """`max_length` of a decoder that attends to all earlier tokens.

    Args:
      trained: most tokens of a sequence, by the checkpoint.
      window: tokens that a token attends to at most; None for all. Sequences that are no longer are exact.
      wanted: by the user; None for as many as possible.

    Raises:
      UserError: more are wanted than possible.
    """
    most = min(trained, window or trained)
    if wanted is None:
        return most
    check_whole("max_length", wanted, at_least=1)
    if wanted > most:
        reason = "attends to" if most < trained else "takes"
        raise UserError(f"max_length {wanted} is too long: the model {reason} at most {most} tokens")
    return wanted
