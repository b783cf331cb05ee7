"""Says that the wheel has programs for one kind of machine, although it has no extension module."""

from setuptools import Distribution, setup


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=Binary)
