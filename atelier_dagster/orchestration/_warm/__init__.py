"""How runs start from a warm process: the parts behind `orchestration.launcher`. Nothing else imports them."""
