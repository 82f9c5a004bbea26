"""All ranks run one joint stage after another."""
