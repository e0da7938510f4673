"""Data for the recipes: what ships in a package or comes out of a seeded generator. Nothing is downloaded."""
