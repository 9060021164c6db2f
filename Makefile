# Thin names for what bootstrap.py does; make itself is not needed.
.PHONY: demo setup test fast format

demo:
	python3 bootstrap.py demo

setup:
	python3 bootstrap.py setup

test:
	python3 bootstrap.py test

fast:
	python3 bootstrap.py test --fast

format:
	python3 bootstrap.py run uv run ruff format
