"""Slow Python twins of what runs inside jit."""

from jaxmarl_llm.workflows.vocabulary import Vocabulary


def text_of(task, tokens, length):
    """The text of task tokens, with no blank in it."""
    return "".join(Vocabulary(task.symbols).names[index] for index in tokens[: int(length)])


def run_stack(program, inputs, modulus):
    """The result of a program of names, or None where it is invalid."""
    stack = [value % modulus for value in inputs]
    if not program:
        return None
    try:
        for name in program:
            if name in ("add", "sub", "mul"):
                top, below = stack.pop(), stack.pop()
                stack.append({"add": below + top, "sub": below - top, "mul": below * top}[name] % modulus)
            elif name == "dup":
                stack.append(stack[-1])
            elif name == "swap":
                stack[-1], stack[-2] = stack[-2], stack[-1]
            elif name == "drop":
                stack.pop()
            elif name == "over":
                stack.append(stack[-2])
            else:
                stack.append(int(name) % modulus)
        return stack[-1]
    except (IndexError, ValueError):
        return None
