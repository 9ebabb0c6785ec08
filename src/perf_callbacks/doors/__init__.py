"""The calls that are watched for each integration: of a loop, an accelerator, a trainer."""
