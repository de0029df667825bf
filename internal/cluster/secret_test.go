package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
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
		if len(got[i]) != secretBytes || !bytes.Equal(got[i], got[0]) {
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
