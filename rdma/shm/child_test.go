package shm

const roleEnv = "DRTMX_SHM_TEST_ROLE"

func childMain(role string) int { return 2 }
