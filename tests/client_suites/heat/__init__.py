"""Heat beside a cloud, and the stacks that its scenario creates."""
