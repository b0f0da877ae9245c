"""The version of this release, read by the build and by `smht --version`."""

__version__ = "0.1.0"
