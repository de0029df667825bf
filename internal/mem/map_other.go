//go:build !linux

package mem

import (
	"fmt"
	"os"
)

// Memory that is mapped needs Linux. Elsewhere regions lie on the Go heap, which
// the fabrics within a process and over TCP can read.
const canMap = false

func haveMemfd() bool { return false }

// File is one of the files of a Shared region, which this system does not have.
type File struct {
	Off uint64
	*os.File
}

func (r *Region) reserve() error {
	return fmt.Errorf("%w: want a region on the heap", ErrNoMemfd)
}

func (r *Region) extend(uint64) error { return r.reserve() }

// Files returns no files.
func (r *Region) Files(uint64) []File {
	return nil
}
