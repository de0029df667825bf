package history

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// A log file is the magic and then blocks: payload length and CRC-32C of the
// payload, four bytes each, lowest first, and the payload. A payload is made of
// varints:
//
//	number of versions, then for each
//	    0, key                   the root of a new key
//	    distance, value          the version of that distance back, with value appended
//	number of transactions, then for each
//	    process, number, outcome | 4 of a snapshot | 8 of a stale one, whose bound follows,
//	    invoke (signed, from that of the transaction before it in the block),
//	    complete - invoke, number of operations, then for each
//	        OpAppend, key number, value
//	        OpRead | OpDelete | opRow, version number
//	        OpScan, lo, hi, number of rows (which follow as operations)
//
// Versions are numbered from 1 in the order of the file, keys from 0 in that of
// their roots. A block needs nothing but the blocks before it.
const fileMagic = "drtmxLA1"

// Flags beside an outcome.
const (
	snapshotFlag = 4
	staleFlag    = 8
)

const (
	blockHeaderSize = 8
	// blockSizeMax bounds what a reader buffers at once; a writer starts a new
	// block at blockSizeTarget, and no single transaction comes near the rest.
	blockSizeMax    = 64 << 20
	blockSizeTarget = 1 << 20
)

var (
	// ErrCorrupt is returned when a file is not a log, or was damaged.
	ErrCorrupt = errors.New("history: corrupt log")
	// ErrTruncated is returned along with the whole blocks before it when a
	// file ends within a block, as it does if its writer was killed.
	ErrTruncated = errors.New("history: log ends within a block")
	// ErrTooLarge is returned when one transaction does not fit a block.
	ErrTooLarge = errors.New("history: transaction too large for the log")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encoder writes tables as blocks. nodes is the number of the first version to
// write. The first error sticks.
type encoder struct {
	w      io.Writer
	tables *tables
	nodes  int
	buf    []byte
	block  []byte
	err    error
}

func (e *encoder) header() {
	_, e.err = io.WriteString(e.w, fileMagic)
}

// rest writes all versions from e.nodes on, and all transactions.
func (e *encoder) rest() {
	t := e.tables
	txns := 0
	for (e.nodes < len(t.nodes) || txns < len(t.txns)) && e.err == nil {
		e.buf = e.buf[:0]
		count := 0
		for e.nodes < len(t.nodes) && len(e.buf) < blockSizeTarget {
			e.node(e.nodes)
			e.nodes++
			count++
		}
		e.block = append(e.block[:0], make([]byte, blockHeaderSize)...)
		e.block = binary.AppendUvarint(e.block, uint64(count))
		e.block = append(e.block, e.buf...)

		e.buf = e.buf[:0]
		count = 0
		// A transaction may refer to any version, so they wait for the last.
		for e.nodes >= len(t.nodes) && txns < len(t.txns) && len(e.buf) < blockSizeTarget {
			e.txn(uint32(txns), count > 0)
			txns++
			count++
		}
		e.block = binary.AppendUvarint(e.block, uint64(count))
		e.block = append(e.block, e.buf...)
		e.flush()
	}
}

func (e *encoder) flush() {
	payload := e.block[blockHeaderSize:]
	if len(payload) > blockSizeMax {
		e.err = ErrTooLarge
		return
	}
	binary.LittleEndian.PutUint32(e.block, uint32(len(payload)))
	binary.LittleEndian.PutUint32(e.block[4:], crc32.Checksum(payload, castagnoli))
	_, e.err = e.w.Write(e.block)
}

func (e *encoder) node(i int) {
	n := &e.tables.nodes[i]
	if n.parent == 0 {
		e.buf = append(e.buf, 0)
		e.buf = binary.AppendUvarint(e.buf, uint64(e.tables.keys[n.key]))
		return
	}
	e.buf = binary.AppendUvarint(e.buf, uint64(i)-uint64(n.parent))
	e.buf = binary.AppendUvarint(e.buf, uint64(n.value))
}

func (e *encoder) txn(i uint32, inBlock bool) {
	t := &e.tables.txns[i]
	from := int64(0)
	if inBlock {
		from = e.tables.txns[i-1].invoke
	}
	b := e.buf
	b = binary.AppendUvarint(b, uint64(t.id.Process()))
	b = binary.AppendUvarint(b, uint64(t.id.Number()))
	switch {
	case t.stale > 0:
		b = append(b, byte(t.outcome)|snapshotFlag|staleFlag)
		b = binary.AppendUvarint(b, uint64(t.stale))
	case t.snapshot:
		b = append(b, byte(t.outcome)|snapshotFlag)
	default:
		b = append(b, byte(t.outcome))
	}
	b = binary.AppendVarint(b, t.invoke-from)
	b = binary.AppendUvarint(b, uint64(t.complete)-uint64(t.invoke))
	ops := e.tables.opsOf(i)
	b = binary.AppendUvarint(b, uint64(len(ops)))
	for _, o := range ops {
		b = append(b, byte(o.kind))
		switch o.kind {
		case OpAppend:
			b = binary.AppendUvarint(b, uint64(o.key))
			b = binary.AppendUvarint(b, o.arg)
		case OpScan:
			s := &e.tables.scans[o.arg]
			b = binary.AppendUvarint(b, uint64(s.lo))
			b = binary.AppendUvarint(b, uint64(s.hi))
			b = binary.AppendUvarint(b, uint64(s.rows))
		default:
			b = binary.AppendUvarint(b, o.arg)
		}
	}
	e.buf = b
}

// Write writes the log in the format that [ReadLog] reads.
func (l *Log) Write(w io.Writer) error { return write(w, &l.tables) }

// Write writes the history in the format that [ReadLog] reads.
func (h *History) Write(w io.Writer) error { return write(w, &h.tables) }

func write(w io.Writer, t *tables) error {
	e := encoder{w: w, tables: t, nodes: 1}
	if e.header(); e.err == nil {
		e.rest()
	}
	if e.err != nil {
		return fmt.Errorf("history: write: %w", e.err)
	}
	return nil
}

// Save writes the history to a file, replacing any that is there, so that a
// failing one can be examined and checked again.
func (h *History) Save(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("history: save: %w", err)
	}
	err = h.Write(f)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("history: save: %w", err)
	}
	return nil
}

// Load reads log files and merges them. If some end within a block, it returns
// the history of all that is whole together with [ErrTruncated]; any other
// error comes without a history.
func Load(paths ...string) (*History, error) {
	var logs []*Log
	var truncated error
	for _, path := range paths {
		l, err := loadLog(path)
		switch {
		case errors.Is(err, ErrTruncated):
			truncated = err
		case err != nil:
			return nil, err
		}
		logs = append(logs, l)
	}
	h, err := Merge(logs...)
	if err != nil {
		return nil, err
	}
	return h, truncated
}

func loadLog(path string) (*Log, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: load: %w", err)
	}
	defer f.Close()
	l, err := ReadLog(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return l, err
}

// ReadLog reads a log file to its end. It returns [ErrTruncated] together with
// what precedes a torn block, [ErrCorrupt] without a log for anything else that
// no encoder writes, or the reader's error. It allocates in proportion to the
// bytes read, whatever they claim.
func ReadLog(r io.Reader) (*Log, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	var magic [len(fileMagic)]byte
	switch _, err := io.ReadFull(br, magic[:]); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &Log{tables{nodes: make([]node, 1)}}, ErrTruncated
	case err != nil:
		return nil, fmt.Errorf("history: read: %w", err)
	case string(magic[:]) != fileMagic:
		return nil, fmt.Errorf("%w: not a log file", ErrCorrupt)
	}
	l := &Log{tables{nodes: make([]node, 1)}}
	d := decoder{tables: &l.tables}
	offset := int64(len(fileMagic))
	var payload bytes.Buffer
	for {
		n, err := readBlock(br, &payload)
		if errors.Is(err, io.EOF) {
			return l, nil
		}
		if err == nil {
			err = d.payload(payload.Bytes())
		}
		if err != nil {
			err = fmt.Errorf("block at byte %d: %w", offset, err)
			if errors.Is(err, ErrTruncated) {
				return l, err
			}
			return nil, err
		}
		offset += n
	}
}

// readBlock reads one block's payload into buf and returns the block's size. It
// returns io.EOF at the end of the file and nowhere else.
func readBlock(r io.Reader, buf *bytes.Buffer) (int64, error) {
	var header [blockHeaderSize]byte
	switch n, err := io.ReadFull(r, header[:]); {
	case n == 0 && errors.Is(err, io.EOF):
		return 0, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return 0, ErrTruncated
	case err != nil:
		return 0, fmt.Errorf("history: read: %w", err)
	}
	size := int64(binary.LittleEndian.Uint32(header[:]))
	if size > blockSizeMax {
		return 0, fmt.Errorf("%w: block of %d bytes", ErrCorrupt, size)
	}
	buf.Reset()
	switch n, err := io.CopyN(buf, r, size); {
	case errors.Is(err, io.EOF) && n < size:
		return 0, ErrTruncated
	case err != nil:
		return 0, fmt.Errorf("history: read: %w", err)
	}
	if crc32.Checksum(buf.Bytes(), castagnoli) != binary.LittleEndian.Uint32(header[4:]) {
		return 0, fmt.Errorf("%w: checksum mismatch", ErrCorrupt)
	}
	return blockHeaderSize + size, nil
}
