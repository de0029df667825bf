//go:build amd64 && !(race && invariants) && !simulated

package mem

import (
	"sync/atomic"
	"unsafe"
)

// copyWords moves n words in ascending order with one 8-byte move each. On
// amd64 an aligned 8-byte move is atomic, loads are not reordered with loads
// nor stores with stores (AMD64 Architecture Programmer's Manual, vol. 2,
// §7.1–7.2), which is what both directions promise.
//
//go:noescape
func copyWords(dst, src unsafe.Pointer, n int)

func loadWords(dst, src unsafe.Pointer, n int)  { copyWords(dst, src, n) }
func storeWords(dst, src unsafe.Pointer, n int) { copyWords(dst, src, n) }

// storeWord is storeWords of one word. It does not wait until the word has left
// the processor, as an atomic store does.
//
//go:noescape
func storeWord(word *uint64, v uint64)

// addWord adds to a word without locking the bus: readers see the old value or
// the new one.
//
//go:noescape
func addWord(word *atomic.Uint64, by uint64)
