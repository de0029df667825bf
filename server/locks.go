package server

import "drtmx/index"

// sharedLocks is a partition's table of shared locks: the words whose values
// a prepared transaction relies on until it is decided. Guarded by the
// partition's mutex. It implements index.SharedLocks.
type sharedLocks struct {
	owners map[uint64][]index.Owner
}

func newSharedLocks() *sharedLocks { return &sharedLocks{map[uint64][]index.Owner{}} }

// Empty implements index.SharedLocks.
func (l *sharedLocks) Empty() bool { return len(l.owners) == 0 }

// SharedByOther implements index.SharedLocks.
func (l *sharedLocks) SharedByOther(addr uint64, o index.Owner) bool {
	for _, other := range l.owners[addr] {
		if other != o {
			return true
		}
	}
	return false
}

// Move implements index.SharedLocks.
func (l *sharedLocks) Move(from, to uint64) {
	if from == to {
		return
	}
	if os, ok := l.owners[from]; ok {
		delete(l.owners, from)
		for _, o := range os {
			l.add(to, o)
		}
	}
}

// Copy implements index.SharedLocks.
func (l *sharedLocks) Copy(from, to uint64) {
	if from == to {
		return
	}
	for _, o := range l.owners[from] {
		l.add(to, o)
	}
}

func (l *sharedLocks) add(addr uint64, o index.Owner) {
	for _, have := range l.owners[addr] {
		if have == o {
			return
		}
	}
	l.owners[addr] = append(l.owners[addr], o)
}

// release drops all shared locks of one owner. Tables are small: they hold
// only what transactions prepared at this moment have read.
func (l *sharedLocks) release(o index.Owner) {
	for addr, os := range l.owners {
		for i, have := range os {
			if have == o {
				os[i] = os[len(os)-1]
				os = os[:len(os)-1]
				break
			}
		}
		if len(os) == 0 {
			delete(l.owners, addr)
		} else {
			l.owners[addr] = os
		}
	}
}
