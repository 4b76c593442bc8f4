"""OneBasin: move posteriors of Bayesian neural networks into one basin.

The public names are listed once, in `__init__.pyi`, and are imported on first use, so that
`import onebasin` and `onebasin --help` are fast.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
