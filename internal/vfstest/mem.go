package vfstest

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Mem is a file system in memory that a crash can be made of at any moment. It is
// that of package vfs, whose Lock takes a read lock twice: a CrashClone that waits
// between the two would wait for ever, and so would all others.
type Mem struct {
	*vfs.MemFS
	locking sync.RWMutex // read by Lock, so that no CrashClone begins within it
}

// NewMem returns an empty file system of which no crash can be made.
func NewMem() *Mem { return &Mem{MemFS: vfs.NewMem()} }

// NewCrashableMem returns an empty file system.
func NewCrashableMem() *Mem { return &Mem{MemFS: vfs.NewCrashableMem()} }

// Lock implements vfs.FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.locking.RLock()
	defer m.locking.RUnlock()
	return m.MemFS.Lock(name)
}

// CrashClone returns what a crash leaves at this moment, as vfs.MemFS does.
func (m *Mem) CrashClone(c vfs.CrashCloneCfg) *Mem {
	m.locking.Lock()
	defer m.locking.Unlock()
	return &Mem{MemFS: m.MemFS.CrashClone(c)}
}
