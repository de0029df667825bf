package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"drtmx/internal/member"
)

// TestSharedSecret: servers that start together get one secret, which only
// their user can read.
func TestSharedSecret(t *testing.T) {
	dir := t.TempDir()
	var got [16][]byte
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = sharedSecret(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range got {
		if len(got[i]) != member.SecretBytes || !bytes.Equal(got[i], got[0]) {
			t.Errorf("server %d has the secret %x, server 0 %x", i, got[i], got[0])
		}
	}
	st, err := os.Stat(filepath.Join(dir, secretFile))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%d files are left", len(left))
	}
	if err := os.WriteFile(filepath.Join(dir, secretFile), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sharedSecret(dir); !errors.Is(err, ErrDir) {
		t.Errorf("a damaged secret: %v", err)
	}
}

// TestSecretFiles: a file that others can read, that is none, or that is too short or
// too long is refused in one line that names it.
func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, n int, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, bytes.Repeat([]byte{7}, n), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, n := range []int{minSecretBytes, 32, maxSecretBytes} {
		if b, err := ReadSecret(file("good", n, 0o400)); err != nil || len(b) != n {
			t.Errorf("%d bytes: %d, %v", n, len(b), err)
		}
		if err := os.Remove(filepath.Join(dir, "good")); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, path := range map[string]string{
		"no such file":          filepath.Join(dir, "absent"),
		"other users":           file("open", 32, 0o640),
		"0 bytes":               file("empty", 0, 0o600),
		"15 bytes":              file("short", minSecretBytes-1, 0o600),
		"4097 bytes":            file("long", maxSecretBytes+1, 0o600),
		"it is no regular file": pipe,
	} {
		_, err := ReadSecret(path)
		if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if _, err := ReadSecret(dir); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "it is no regular file") {
		t.Errorf("a directory: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Log("not root: a file of another user is not tried")
		return
	}
	foreign := file("foreign", 32, 0o600)
	if err := os.Chown(foreign, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecret(foreign); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "it belongs to uid 12345") {
		t.Errorf("a file of another user: %v", err)
	}
}
