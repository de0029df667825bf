package vfstest

import (
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestLockBesideCrashClone: crashes are made of a file system while others lock
// files there. With the Lock of package vfs both wait for ever.
func TestLockBesideCrashClone(t *testing.T) {
	mem := NewCrashableMem()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for range 20_000 {
			l, err := mem.Lock("lock")
			if err == nil {
				err = l.Close()
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := 0; ; n++ {
		select {
		case <-done:
			wg.Wait()
			t.Logf("%d crashes", n)
			return
		default:
			mem.CrashClone(vfs.CrashCloneCfg{})
		}
	}
}
