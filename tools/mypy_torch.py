"""For mypy: what an `nn.Module` registers (parameters, buffers, sub-modules) may be used as what it is.

PyTorch types it as `Tensor | Module`, so that calling a layer, or reading a size of one, would be an error everywhere.
"""

from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny

MODULE = "torch.nn.modules.module.Module."


class Registered(Plugin):
    def get_attribute_hook(self, fullname: str):
        return any_type if fullname.startswith(MODULE) else None


def any_type(context: AttributeContext) -> Type:
    found = str(context.default_attr_type)
    is_registered = "Tensor" in found and "Module" in found
    unknown = AnyType(TypeOfAny.special_form)
    return unknown if is_registered else context.default_attr_type


def plugin(version: str):
    return Registered
