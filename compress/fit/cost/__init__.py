"""What each part of a model costs on this device."""
