"""What shared weights start from, one file each."""
