package rdmatest

import (
	"os"

	"golang.org/x/sys/unix"
)

// limitDescriptors lets the process open only that many more files, until
// restore is called.
func limitDescriptors(spare int) (restore func(), err error) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		return nil, err
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	lowest := uint64(f.Fd()) // numbers below it are taken
	if err := f.Close(); err != nil {
		return nil, err
	}
	limit := unix.Rlimit{Cur: lowest + uint64(spare), Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, err
	}
	return func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) }, nil
}
