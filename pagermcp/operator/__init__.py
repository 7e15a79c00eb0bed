"""What an operator does with a spool: look into it, mend it, move mailboxes. All of it may run beside a relay."""
