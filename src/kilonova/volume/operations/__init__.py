"""Operations of the volume service, one file each."""
