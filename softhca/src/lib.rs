//! A software mlx5 card.
