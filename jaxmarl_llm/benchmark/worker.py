"""Our side of a comparison: `python -m jaxmarl_llm.benchmark.worker` answers the requests of `serve`."""

from jaxmarl_llm.benchmark.serve import serve


def prepare(settings: dict):
    """Compiles what is asked for.

    Args:
      settings: `what` (`"environment"` or `"training"`) and the arguments of `prepare_environment` or
        `prepare_training`.
    """
    from jaxmarl_llm.benchmark import machine_report, prepare_environment, prepare_training
    from jaxmarl_llm.training.devices import use_cpu_cores

    settings = dict(settings)
    if settings["what"] == "training":
        use_cpu_cores()
    makers = {"environment": prepare_environment, "training": prepare_training}
    program = makers[settings.pop("what")](**settings)
    return {"compile_s": program.compile_s, "steps": program.steps, "machine": machine_report()}, program.run


if __name__ == "__main__":
    serve(prepare)
