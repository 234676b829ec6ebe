"""What a broker process exports besides what its parts count themselves: metrics made of what it handles anyway."""
