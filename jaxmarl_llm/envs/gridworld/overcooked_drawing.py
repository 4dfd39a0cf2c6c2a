"""Pictures of Overcooked."""


def draw(kitchen, state, max_steps):
    """Placeholder."""
    raise NotImplementedError
