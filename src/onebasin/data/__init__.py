"""Data sets: embedded, from a folder of published files, or downloaded and checked."""

from onebasin.data.dataset import DataFileError as DataFileError
from onebasin.data.dataset import Dataset as Dataset
from onebasin.data.dataset import Split as Split
from onebasin.data.inventory import Found as Found
from onebasin.data.inventory import describe as describe
from onebasin.data.inventory import render as render
from onebasin.data.loading import load_dataset as load_dataset
from onebasin.data.own import read_dataset as read_dataset
from onebasin.data.sources import NAMES as NAMES
from onebasin.data.sources import SOURCES as SOURCES
from onebasin.data.sources import Download as Download
from onebasin.data.sources import Source as Source
