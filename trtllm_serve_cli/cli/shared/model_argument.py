"""Accept the model name as an argument or with -m."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from trtllm_serve_cli.cli.shared.completion import Completion, imported_models, with_completion
from trtllm_serve_cli.cli.shared.option_signature import with_signature

_ARGUMENT = "name_argument"


def accepts_name(
    parameter: str = "model", *, is_required: bool = False, complete: Completion = imported_models
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the NAME argument to a command, as an alternative to the command's -m option.

    `parameter` is the command's parameter for the option. `complete` provides shell completion for
    the argument and the option. The command raises `BadParameter` if the argument and the option
    differ or, with `is_required`, if the user passes neither.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            name = choose_name(values.pop(_ARGUMENT), values[parameter])
            if name is None and is_required:
                raise typer.BadParameter("No model was specified. Pass NAME.", param_hint="NAME")
            function(**{**values, parameter: name})

        option = inspect.signature(function, eval_str=True).parameters[parameter]
        argument = inspect.Parameter(
            _ARGUMENT,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Argument(metavar="[NAME]", help="Model name. Equivalent to --model NAME."),
            ],
        )
        both = [with_completion(each, complete) for each in (argument, option)]
        return with_signature(function, command, {parameter: both})

    return decorate


def choose_name(argument: str | None, option: str | None) -> str | None:
    """Return the name that the user passed as an argument or with -m.

    Return None if the user passed neither. Raise `BadParameter` if the user passed both and they
    differ.
    """
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(
            f"{argument} and -m {option} name different models. Omit one of them.",
            param_hint="NAME",
        )
    return option if argument is None else argument
