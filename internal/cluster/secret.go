package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"drtmx/internal/member"
	"drtmx/rdma"
)

// secretFile holds the secret of a cluster whose data servers share a
// directory. It can be read by their user only.
const secretFile = "secret"

// minSecretBytes and maxSecretBytes bound a secret that a user brings.
const (
	minSecretBytes = 16
	maxSecretBytes = 4096
)

// ReadSecret reads the secret of a cluster from a file that no other user can read.
// The error names the file, and wraps ErrOptions.
func ReadSecret(path string) ([]byte, error) {
	refuse := func(format string, args ...any) ([]byte, error) {
		return nil, fmt.Errorf("%w: secret file %s: %w", ErrOptions, path, fmt.Errorf(format, args...))
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a pipe must not block
	if err != nil {
		return refuse("%w", reasonOf(err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return refuse("%w", reasonOf(err))
	}
	if !st.Mode().IsRegular() {
		return refuse("it is no regular file")
	}
	if !isTrusted(ownerOf(st)) {
		return refuse("it belongs to uid %d, want a file of uid %d", ownerOf(st), os.Geteuid())
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return refuse("other users have access to it (mode %04o): want 0600 or less", mode)
	}
	if n := st.Size(); n < minSecretBytes || n > maxSecretBytes {
		return refuse("it has %d bytes, want %d to %d, such as those of head -c 32 /dev/urandom", n, minSecretBytes, maxSecretBytes)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes))
	if err != nil {
		return refuse("%w", reasonOf(err))
	}
	return b, nil
}

// reasonOf returns an error of a file without the file's name.
func reasonOf(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// knowsSecret reports whether the secret does not depend on the directory.
func (o *JoinOptions) knowsSecret() bool { return o.Secret != nil || o.Store != nil }

// setSecret gives the fabrics the secret with which the data servers authenticate each
// other: the one that the user brought, else that of the store in which they find each
// other, else that of the directory that they share.
func (o *JoinOptions) setSecret(ctx context.Context) (err error) {
	secret := o.Secret
	switch {
	case secret != nil:
	case o.Store != nil:
		if secret, err = o.Store.Secret(ctx); err != nil {
			return fmt.Errorf("secret of the cluster: %w", err)
		}
	case o.Dir != "":
		if secret, err = sharedSecret(o.Dir); err != nil {
			return err
		}
	}
	rdma.SetSecret(o.Provider, secret)
	return nil
}

// sharedSecret reads the secret of the cluster whose data servers share dir, and makes
// it if there is none. The caller holds its pid file, so that a server that leaves does
// not remove the secret.
func sharedSecret(dir string) (b []byte, err error) {
	path := filepath.Join(dir, secretFile)
	err = withDirLocked(dir, func() error {
		b, err = os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			b = member.NewSecret()
			return writeSecret(path, b)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: secret of the cluster: %w", ErrDir, err)
	}
	if len(b) != member.SecretBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, want %d: remove it and start all data servers again", ErrDir, path, len(b), member.SecretBytes)
	}
	return b, nil
}

// writeSecret writes the secret so that readers see all of the file or none.
func writeSecret(path string, secret []byte) error {
	if err := os.WriteFile(path+".tmp", secret, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// withDirLocked runs f while other data servers cannot use the secret.
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
