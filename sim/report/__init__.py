"""What people read: a world explained on the terminal."""
