"""What an ablation shows, in sentences that are computed from its numbers, each with the numbers that it names."""

from collections.abc import Sequence
from typing import Any

from jaxmarl_llm.report.ablation_summary import MIN_SEEDS, rounded

# Ten points: what counts as a gain worth training for.
_WORTHWHILE = 0.1
# Gradients of a smaller cosine have little to do with each other.
_NEAR_ZERO = 0.05
SHARING_NAMES = {"shared": "SP", "isolated": "IP", "adapters": "LoRA"}


def finding(template: str, **values: Any) -> dict[str, Any]:
    """A sentence with the values that fill its template."""
    return {"text": template.format(**values), "values": values}


def find(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of an ablation.

    Args:
      summary: of `summarize`.

    Returns:
      `text` and `values` of each, for JSON. Every number in a text is a value.
    """
    cells = summary["cells"]
    teams = [cell for cell in cells if cell["multi_agent"]]
    found = [_setting(summary)]
    found += _gains(teams)
    for kind in ("isolated - shared", "adapters - shared", "adapters - isolated", "team - single"):
        found += _comparisons(summary, kind)
    found += _cliffs(cells)
    found += _mass(teams)
    found += _failures(teams)
    found += _warnings(summary)
    return found


def _setting(summary: dict[str, Any]) -> dict[str, Any]:
    config, evaluation = summary["config"], summary["evaluation"]
    seeds = config["num_seeds"]
    how = "likeliest tokens" if config.get("eval_greedy", True) else "sampled tokens"
    text = (
        "{cells} cell{cell_plural} with {seeds} seed{plural} each, {iterations} update{update_plural}. Accuracy is "
        "that of {how} on the same {problems} held-out problems; from their number one evaluation has a standard error "
        "of up to {error:.3f}. "
    )
    text += (
        "Peak and final are single evaluations"
        if evaluation["window"] == 1
        else "Peak and final are means of {window} evaluations"
    )
    text += "; the peak is chosen among them, so it is a little too high. "
    if seeds < MIN_SEEDS:
        text += "There is one seed, and so no interval. " if seeds == 1 else ""
        text += (
            "With fewer than {needed} seeds an interval over seeds cannot tell an effect from chance: every sentence "
            "below is an observation of this run, and other seeds may turn it around."
        )
    else:
        shared = "share one base policy" if "model" not in config else "all begin with the model as it is"
        text += (
            f"Intervals are 95 % bootstrap intervals over seeds, which {shared}. Where a sentence names no interval, "
            "it is an observation of these seeds, and others may turn it around."
        )
    return finding(
        text,
        cells=len(summary["cells"]),
        seeds=seeds,
        plural="s" if seeds > 1 else "",
        cell_plural="s" if len(summary["cells"]) > 1 else "",
        iterations=config["iterations"],
        update_plural="s" if config["iterations"] > 1 else "",
        how=how,
        problems=evaluation["problems"],
        error=evaluation["standard_error"],
        window=evaluation["window"],
        needed=MIN_SEEDS,
        level=95,
    )


def _gains(teams: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    known = [cell for cell in teams if cell["gain"]["mean"] is not None]
    if not known:
        return []
    gains = [cell["gain"]["mean"] for cell in known]
    best, worst = known[gains.index(max(gains))], known[gains.index(min(gains))]
    text = (
        "Training ends above the base in {above} of {teams} multi-agent cells, and below it in {below}; {bar:.3f} or "
    )
    text += "more above it, what this report counts as a gain worth training for, in {reached}. "
    text += (
        "The gain lies between {low:+.3f} ({worst}) and {high:+.3f} ({best})."
        if max(gains) > min(gains)
        else "The gain is {low:+.3f}."
    )
    return [
        finding(
            text,
            bar=_WORTHWHILE,
            reached=sum(gain >= _WORTHWHILE for gain in gains),
            teams=len(teams),
            above=sum(gain > 0 for gain in gains),
            below=sum(gain < 0 for gain in gains),
            low=min(gains),
            high=max(gains),
            worst=label(worst),
            best=label(best),
        )
    ]


def label(cell: dict[str, Any]) -> str:
    """A cell in a few words, such as `voting SP arithmetic tiny`."""
    return f"{cell['workflow']} {SHARING_NAMES[cell['sharing']]} {cell['task']} {cell['size']}"


def _comparisons(summary: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    pairs = [pair for pair in summary["comparisons"] if pair["kind"] == kind and pair["final"]["mean"] is not None]
    if not pairs:
        return []
    names = SHARING_NAMES | {"team": "the team", "single": "the single agent"}
    first, second = (names[side] for side in kind.split(" - "))
    peaks = [pair["peak"]["mean"] for pair in pairs]
    found = finding(
        "{first} less {second}: the peak is higher in {peaks} of {pairs} pairs, the end in {ends}.",
        first=first[0].upper() + first[1:],
        second=second,
        peaks=sum(value > 0 for value in peaks),
        pairs=len(pairs),
        ends=sum(pair["final"]["mean"] > 0 for pair in pairs),
    )
    if summary["config"]["num_seeds"] >= MIN_SEEDS:
        verdicts = [pair["verdict"] for pair in pairs]
        told = finding(
            " The interval of the difference at the end lies above zero in {higher}, below in {lower}, and includes it "
            "in {open}.",
            higher=verdicts.count("higher"),
            lower=verdicts.count("lower"),
            open=verdicts.count("open"),
        )
        found = {"text": found["text"] + told["text"], "values": found["values"] | told["values"]}
    sentences = [found]
    for pair in pairs:
        where = f"{pair['workflow']} {pair['task']} {pair['size']}"
        if kind == "team - single":
            where = label(pair)
        verdict = pair["verdict"]
        if len(pair["final"]["by_seed"]) == 1:
            verdict = "one seed"
        interval = "" if pair["final"]["low"] is None else " [{low:+.3f}, {high:+.3f}]"
        sentences.append(
            finding(
                f"{{where}}: {{mean:+.3f}}{interval} at the end, {{peak:+.3f}} at the peak{{verdict}}.",
                where=where,
                **{name: pair["final"][name] for name in ("mean", "low", "high")},
                peak=pair["peak"]["mean"],
                verdict="" if verdict in ("higher", "lower") else f" ({verdict})",
            )
            | {"detail": True}
        )
    return sentences


def _cliffs(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    def count(sharing):
        of_kind = [cell for cell in cells if cell["multi_agent"] and cell["sharing"] == sharing]
        return sum(cell["cliffs"] for cell in of_kind), sum(len(cell["seeds"]) for cell in of_kind)

    kinds = {sharing: count(sharing) for sharing in SHARING_NAMES}
    kinds = {sharing: counts for sharing, counts in kinds.items() if counts[1]}
    total, seeds = sum(cell["cliffs"] for cell in cells), sum(len(cell["seeds"]) for cell in cells)
    if not seeds:
        return []
    text = "Off a cliff, that is, well below their own peak at the end, are {total} of {seeds} trained seeds"
    if len(kinds) > 1:
        parts = [f"{{{sharing}}} of {{num_{sharing}}} with {SHARING_NAMES[sharing]}" for sharing in kinds]
        text += f": of the teams {', '.join(parts[:-1])} and {parts[-1]}"
    diverged = sum(cell["diverged"] for cell in cells)
    text += "." if not diverged else ". In {diverged} the loss became no number."
    return [
        finding(
            text,
            total=total,
            seeds=seeds,
            diverged=diverged,
            **{sharing: cliffs for sharing, (cliffs, _) in kinds.items()},
            **{f"num_{sharing}": number for sharing, (_, number) in kinds.items()},
        )
    ]


def _mass(teams: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    shares = [
        (role["gradient_share"]["mean"], name, cell)
        for cell in teams
        if cell["sharing"] == "shared"
        for name, role in cell["roles"].items()
        if "gradient_share" in role and role["gradient_share"]["mean"] is not None
    ]
    if not shares:
        return []
    share, role, cell = max(shares, key=lambda found: found[0])
    found = [
        finding(
            "Under SP the largest share of the gradient mass is {share:.3f}, of the {role} in {cell}, where an even "
            "share is {even:.3f}.",
            share=share,
            role=role,
            cell=label(cell),
            even=rounded(1 / len(cell["roles"])),
        )
    ]
    cosines = [
        (value, pair, cell)
        for cell in teams
        if cell["sharing"] == "shared"
        for pair, value in cell["role_cosine"].items()
        if value["mean"] is not None
    ]
    if cosines:
        numbers, pair, cell = min(cosines, key=lambda found: found[0]["mean"])
        interval = "" if numbers["low"] is None else " [{low:+.3f}, {high:+.3f}]"
        text = f"The lowest mean cosine between the gradients of two roles is {{cosine:+.3f}}{interval} ({{pair}} in "
        text += f"{{cell}}): {_pull(numbers)}."
        ends = {end: numbers[end] for end in ("low", "high")}
        pair = pair.replace("-", " and ")
        found.append(finding(text, cosine=numbers["mean"], **ends, near=_NEAR_ZERO, pair=pair, cell=label(cell)))
    return found


def _pull(cosine: dict[str, Any]) -> str:
    """What the lowest cosine of two roles says, with the field `near`."""
    if abs(cosine["mean"]) <= _NEAR_ZERO:
        return "within {near:.3f} of zero, so that their steps have little to do with each other"
    if cosine["mean"] > 0:
        return "on average the steps of all pairs of roles have a part in common"
    if len(cosine["by_seed"]) < MIN_SEEDS or cosine["high"] is None or cosine["high"] >= 0:
        return "in this run their steps go apart on average"
    return "they pull one policy apart"


def _failures(teams: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for sharing in SHARING_NAMES:
        ends = [cell["outcomes"]["final"] for cell in teams if cell["sharing"] == sharing]
        selection = sum(end["selection_failure"]["mean"] or 0.0 for end in ends)
        failures = selection + sum(end["generation_failure"]["mean"] or 0.0 for end in ends)
        if failures > 0:
            found.append(
                finding(
                    "Of the failures at the end with {sharing}, a share of {share:.3f} are failures of selection: a "
                    "right solution was there, and the answer is not.",
                    sharing=SHARING_NAMES[sharing],
                    share=rounded(selection / failures),
                )
            )
    return found


def _warnings(summary: dict[str, Any]) -> list[dict[str, Any]]:
    names = {"clip_fraction": "a role's clip fraction", "update_kl": "the divergence of a role's update"}
    found = []
    for name, quality in summary["warnings"].items():
        if quality is None or not (quality["cliffs"] or quality["alarms"]):
            continue
        text = "Early warning by {name} above {level}: "
        text += "no alarm" if not quality["alarms"] else f"{{alarms}} alarm{'s' if quality['alarms'] > 1 else ''}"
        text += (
            ", and no cliff" if not quality["cliffs"] else f", {{cliffs}} cliff{'s' if quality['cliffs'] > 1 else ''}"
        )
        if quality["alarms"] and quality["cliffs"]:
            text += ", {hits} of them with an alarm before"
        text += ", on average {lead:.1f} updates ahead." if quality["hits"] else "."
        found.append(finding(text, name=names[name], **quality))
    return found
