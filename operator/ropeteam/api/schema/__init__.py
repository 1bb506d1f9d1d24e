"""Structural schemas, the part of OpenAPI that a CustomResourceDefinition has. Pure.

structural.py   pydantic models as structural schemas
walker.py       each difference between a value and its schema
sentences.py    the differences as sentences for users
explained.py    defaults and limits as sentences of the descriptions
"""
