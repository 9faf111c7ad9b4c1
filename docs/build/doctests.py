"""For the API page: a docstring's ``>>>`` examples become a code block, which Markdown would show as quotations."""

import re
import textwrap

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*\n?)+", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring is not None:
            text = textwrap.dedent(obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
