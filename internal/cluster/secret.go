package cluster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// secretFile holds the secret of a cluster whose data servers share a
// directory. It can be read by their user only.
const secretFile = "secret"

// secretBytes is the size of the secret by which the data servers of a cluster
// know each other over shared memory.
const secretBytes = 32

func newSecret() []byte {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails
	return b
}

// sharedSecret reads the secret of the cluster whose data servers have dir in
// common, and makes it if there is none. The caller holds its pid file, so that
// a server that leaves does not remove the secret.
func sharedSecret(dir string) (b []byte, err error) {
	path := filepath.Join(dir, secretFile)
	err = withDirLocked(dir, func() error {
		b, err = os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			b = newSecret()
			return writeSecret(path, b)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: secret of the cluster: %w", ErrDir, err)
	}
	if len(b) != secretBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, want %d: remove it and start all data servers again", ErrDir, path, len(b), secretBytes)
	}
	return b, nil
}

// writeSecret makes the file appear as a whole.
func writeSecret(path string, secret []byte) error {
	if err := os.WriteFile(path+".tmp", secret, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// withDirLocked keeps other data servers out of the secret meanwhile.
func withDirLocked(dir string, f func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	return f()
}
