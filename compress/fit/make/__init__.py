"""Plans made and evaluated."""
