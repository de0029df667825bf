//go:build !amd64 || (race && invariants) || simulated

package mem

import (
	"sync/atomic"
	"unsafe"
)

func loadWords(dst, src unsafe.Pointer, n int) {
	for i := range n {
		pause()
		*(*uint64)(unsafe.Add(dst, i*WordBytes)) = atomic.LoadUint64((*uint64)(unsafe.Add(src, i*WordBytes)))
	}
}

func storeWords(dst, src unsafe.Pointer, n int) {
	for i := range n {
		pause()
		atomic.StoreUint64((*uint64)(unsafe.Add(dst, i*WordBytes)), *(*uint64)(unsafe.Add(src, i*WordBytes)))
	}
}

func storeWord(word *uint64, v uint64) {
	pause()
	atomic.StoreUint64(word, v)
}

func addWord(word *atomic.Uint64, by uint64) { word.Store(word.Load() + by) }
