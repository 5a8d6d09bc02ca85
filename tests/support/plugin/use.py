"""Run in an environment that has gravac and the plugin from wheels; warnings are errors."""

import sys
import warnings
from pathlib import Path

from gravac import aggregators, compressors, memories, policies, registry

assert "site-packages" in Path(compressors.__file__).parts
assert type(compressors.build("topk+bf16")).__name__ == "Stack"
aggregators.parse("powersgd")
assert "theirs" not in sys.modules, "plugins are loaded when they are needed"

codec = compressors.build("theirs:step=2")
assert (codec.name, codec.step) == ("theirs", 2)
assert compressors.build("theirs+int8").name == "theirs+int8"
aggregators.parse("theirs:step=3")
assert memories.build("theirs").spec == "theirs"
assert policies.parse("theirs").start().decision.rule == "our_rule"
assert compressors.build("topk").__class__.__module__.startswith("gravac.")
assert registry.plugins("theirs:step=2") == {
    f"gravac.{kind}:theirs": "theirs-codec 1.2" for kind in ("compressors", "memories", "policies")
}
assert registry.plugins("topk") == {}


def error_of(text: str) -> str:
    try:
        aggregators.parse(text)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{text} is accepted")


assert "has no setting 'stop' (did you mean 'step'?); it has step" in error_of("theirs:stop=2")
said = error_of("broken")
assert "'broken' is in the plugin theirs-codec 1.2 (entry point broken = 'theirs:Missing'" in said, said
assert "cannot be used: AttributeError" in said, said
assert "repair or uninstall it" in said, said
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    names = compressors.COMPRESSORS.names()
    said = error_of("thiers")
assert {"theirs", "topk", "topk+int8"} <= set(names)
assert "broken" not in names
assert names.count("topk") == 1
assert "unknown (did you mean 'theirs'" in said, said
texts = {str(one.message) for one in caught if issubclass(one.category, registry.PluginWarning)}
assert len(texts) == 2, texts
assert any(
    "the name 'topk' is gravac's own, and not for the plugin theirs-codec 1.2" in text for text in texts
)
