"""Files that mean harm: each is generated, and read in a process with limits on time and memory."""
