"""The study of shared against isolated policies: a matrix of cells, each trained with many seeds at once."""
