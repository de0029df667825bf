package tpcc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"drtmx/tables"
	"drtmx/txn"
)

// lastBytesMax is the most bytes of a C_LAST.
const lastBytesMax = 16

// checkCustomer returns an error unless an input can name the customer: by
// C_ID, or, if that is 0, by C_LAST.
func checkCustomer(w, d, c int64, last []byte) error {
	_, err := DistrictKey(w, d)
	if err == nil && c != 0 {
		_, err = CustomerKey(w, d, c)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	if c == 0 && (len(last) == 0 || len(last) > lastBytesMax) {
		return fmt.Errorf("%w: last name of %d bytes, want 1 to %d", ErrInput, len(last), lastBytesMax)
	}
	return nil
}

// byLast chooses customers by last name, for PAYMENT and ORDER-STATUS. It reuses its
// buffer.
type byLast struct{ sameName []namesake }

type namesake struct {
	first []byte // a view of the entry
	c     int64
}

// queue queues the read of the district's customers with the name.
func (b *byLast) queue(t operations, s *Schema, w, d int64, last []byte) pendingRows {
	lo, hi := lastNameRange(w, d, tables.DigestBytes(last))
	return t.QueueScan(s.byLast, lo, hi, 0)
}

// choose finds the customer in the middle, rounded up, of those with the last name,
// in order of first name (clauses 2.5.2.2 and 2.6.2.2). Equal first names are ordered
// by C_ID, so that the choice is the same in every attempt.
func (b *byLast) choose(found pendingRows, s *Schema, w, d int64, last []byte) (int64, error) {
	entries, err := found.Entries()
	if err != nil {
		return 0, fmt.Errorf("tpcc: customers of %d.%d by last name: %w", w, d, err)
	}
	b.sameName = b.sameName[:0]
	for _, e := range entries {
		if bytes.Equal(e.Row.Text(s.last.last), last) {
			b.sameName = append(b.sameName, namesake{e.Row.Text(s.last.first), int64(e.Key.Num() & MaxCustomers)})
		}
	}
	if len(b.sameName) == 0 {
		return 0, fmt.Errorf("%w: %d.%d %q", ErrNoCustomer, w, d, last)
	}
	slices.SortFunc(b.sameName, func(a, b namesake) int {
		if n := bytes.Compare(a.first, b.first); n != 0 {
			return n
		}
		return cmp.Compare(a.c, b.c)
	})
	// Position n/2 rounded up, counted from 1.
	return b.sameName[(len(b.sameName)+1)/2-1].c, nil
}

// customerRow waits for a customer's row.
func customerRow(row pendingRow, w, d, c int64) (tables.Row, error) {
	r, err := row.Row()
	switch {
	case errors.Is(err, txn.ErrNotFound):
		return nil, fmt.Errorf("%w: %d.%d.%d", ErrNoCustomer, w, d, c)
	case err != nil:
		return nil, fmt.Errorf("tpcc: customer %d.%d.%d: %w", w, d, c, err)
	}
	return r, nil
}
