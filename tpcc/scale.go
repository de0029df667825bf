package tpcc

import (
	"errors"
	"fmt"
)

// Cardinalities that do not vary (clauses 1.2.1, 2.4.1.3, 4.3.3.1).
const (
	Districts = 10 // per warehouse
	MinLines  = 5  // of an order
	MaxLines  = 15
)

// ErrScale reports invalid cardinalities.
var ErrScale = errors.New("tpcc: bad scale")

// Scale is the number of rows that a database starts with. The zero value means
// the specification's cardinalities. Any other scale is for tests, and figures
// obtained with it are not TPC-C figures.
type Scale struct {
	Items       int64 // rows of ITEM, and of STOCK per warehouse; 0: 100,000
	Customers   int64 // customers per district, and orders; 0: 3,000
	Undelivered int64 // the last orders per district that are in NEW_ORDER; 0: three tenths of Customers, 900 of 3,000
}

// FullScale returns the specification's scale (clause 4.3.3.1).
func FullScale() Scale { return Scale{Items: 100_000, Customers: 3_000, Undelivered: 900} }

// orDefault fills in zero fields.
func (s Scale) orDefault() Scale {
	full := FullScale()
	if s.Items == 0 {
		s.Items = full.Items
	}
	if s.Customers == 0 {
		s.Customers = full.Customers
	}
	if s.Undelivered == 0 {
		s.Undelivered = s.Customers * full.Undelivered / full.Customers
	}
	return s
}

// check reports all faults together. It leaves room for one unused item
// number (clause 2.4.1.5).
func (s Scale) check() error {
	var errs []error
	if s.Items < MaxLines || s.Items >= MaxItems {
		errs = append(errs, fmt.Errorf("%w: %d items, want %d to %d", ErrScale, s.Items, MaxLines, MaxItems-1))
	}
	if !keyFits(s.Customers, MaxCustomers) {
		errs = append(errs, fmt.Errorf("%w: %d customers per district, want 1 to %d", ErrScale, s.Customers, MaxCustomers))
	}
	if s.Undelivered < 0 || s.Undelivered > s.Customers {
		errs = append(errs, fmt.Errorf("%w: %d of %d orders undelivered", ErrScale, s.Undelivered, s.Customers))
	}
	return errors.Join(errs...)
}

// lastNames returns the number of different last names of customers: 1,000 (clause
// 4.3.2.3) unless there are fewer customers.
func (s Scale) lastNames() int64 { return min(1000, s.Customers) }

// delivered returns the O_ID of the last delivered order of the population: 2,100 in
// the full scale.
func (s Scale) delivered() int64 { return s.Customers - s.Undelivered }
