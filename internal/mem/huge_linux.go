package mem

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeBytes is the size of a huge page and the alignment of mappings. The
// kernel maps a huge page of a file as one only if the file's offset and the
// address are equal modulo its size.
const hugeBytes = 2 << 20

// mapAligned maps n bytes of anonymous memory at an address that is a multiple
// of hugeBytes.
func mapAligned(n uintptr, prot int) (unsafe.Pointer, error) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if n < hugeBytes {
		return unix.MmapPtr(-1, 0, nil, n, prot, flags)
	}
	whole := n + hugeBytes
	p, err := unix.MmapPtr(-1, 0, nil, whole, prot, flags)
	if err != nil {
		return nil, err
	}
	before := -uintptr(p) & (hugeBytes - 1)
	at := unsafe.Add(p, before)
	if before > 0 {
		_ = unix.MunmapPtr(p, before)
	}
	// MaxBytes need not be a multiple of a page.
	const page = 4096
	end := (n + page - 1) &^ (page - 1)
	if after := whole - before - end; after > 0 {
		_ = unix.MunmapPtr(unsafe.Add(at, end), after)
	}
	return at, nil
}

// adviseHuge asks for huge pages below a region that has just grown to size
// bytes. Transactions read rows at random addresses. With pages of 4 KiB most
// reads cost a page-table walk besides the cache miss, and in a virtual machine
// the walk costs more than the miss. A region of one segment keeps small pages:
// it often stays small.
//
// The kernel may refuse (no contiguous memory, a kernel before 6.1); the pages
// then stay small.
func (r *Region) adviseHuge(size uint64) {
	seg := r.opts.SegmentBytes
	if seg < hugeBytes || size == seg {
		return
	}
	from := size - seg
	if from == seg {
		from = 0
	}
	if r.opts.Kind == Private {
		_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(r.base, from)), size-from), unix.MADV_HUGEPAGE)
		return
	}
	// In the background, because each huge page takes some milliseconds.
	go r.collapse(from, size)
}

// collapse replaces the pages of [from, to) of the memfds by huge pages. Readers and
// writers may use them at the same time. Unlike MADV_HUGEPAGE it does not depend on the
// machine's setting for shared memory, which is usually "never".
func (r *Region) collapse(from, to uint64) {
	r.collapsing.Lock()
	defer r.collapsing.Unlock()
	for off := from; off < to && !r.smallPages; off += hugeBytes {
		b := unsafe.Slice((*byte)(unsafe.Add(r.base, off)), hugeBytes)
		// Only a range that holds a page can be collapsed.
		err := unix.Madvise(b[:4096], unix.MADV_POPULATE_READ)
		if err == nil {
			err = unix.Madvise(b, unix.MADV_COLLAPSE)
		}
		// EAGAIN and EBUSY: a page was in use; later ranges may succeed.
		r.smallPages = err != nil && err != unix.EAGAIN && err != unix.EBUSY
	}
	runtime.KeepAlive(r)
}
