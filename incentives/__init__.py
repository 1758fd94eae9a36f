"""What a contribution is worth: standing and weight."""
