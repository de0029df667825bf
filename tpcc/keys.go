package tpcc

import (
	"errors"
	"fmt"

	"drtmx/tables"
)

// ErrKey reports a number that does not fit its part of a key.
var ErrKey = errors.New("tpcc: number does not fit its key")

// Bits of the parts of keys. The widest key, of the index of orders by
// customer, takes all 64.
const (
	warehouseBits = 20
	districtBits  = 4
	customerBits  = 12
	itemBits      = 17
	orderBits     = 28
	lineBits      = 4
	lastNameBits  = 28 // of the digest of c_last
	serialBits    = 40 // of a history row within its district

	_ = uint(64 - warehouseBits - districtBits - customerBits - orderBits)    // does not compile if negative
	_ = uint(64 - warehouseBits - districtBits - customerBits - lastNameBits) // the same
	_ = uint(64 - warehouseBits - districtBits - serialBits)                  // the same
)

// The largest number of each kind that fits its keys; the smallest is 1.
const (
	// MaxWarehouses is the largest W_ID.
	MaxWarehouses = 1<<warehouseBits - 1
	// MaxCustomers is the largest C_ID within a district.
	MaxCustomers = 1<<customerBits - 1
	// MaxItems is the largest I_ID.
	MaxItems = 1<<itemBits - 1
	// MaxOrders is the largest O_ID within a district. At a thousand orders a
	// second in one district it lasts three days.
	MaxOrders = 1<<orderBits - 1
	// MaxHistory is the largest number of a HISTORY row within its district.
	MaxHistory = 1<<serialBits - 1
)

// keyFits reports whether v is in [1 .. limit].
func keyFits(v, limit int64) bool { return v >= 1 && v <= limit }

func keyError(table string, parts ...int64) error {
	return fmt.Errorf("%w: %s %v", ErrKey, table, parts)
}

// must returns v. It is for keys made of numbers that were checked before, and panics
// if one does not fit.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// nextKey returns the key after key, which must not be the highest.
func nextKey(key tables.Key) tables.Key { return tables.Num(key.Num() + 1) }

// WarehouseKey is the primary key of WAREHOUSE: w.
func WarehouseKey(w int64) (tables.Key, error) {
	if !keyFits(w, MaxWarehouses) {
		return tables.Key{}, keyError(TableWarehouse, w)
	}
	return tables.Num(uint64(w)), nil
}

// DistrictKey is the primary key of DISTRICT: w(20) | d(4).
func DistrictKey(w, d int64) (tables.Key, error) {
	if !keyFits(w, MaxWarehouses) || !keyFits(d, Districts) {
		return tables.Key{}, keyError(TableDistrict, w, d)
	}
	return tables.Num(uint64(w)<<districtBits | uint64(d)), nil
}

// CustomerKey is the primary key of CUSTOMER: w(20) | d(4) | c(12).
func CustomerKey(w, d, c int64) (tables.Key, error) {
	if !keyFits(w, MaxWarehouses) || !keyFits(d, Districts) || !keyFits(c, MaxCustomers) {
		return tables.Key{}, keyError(TableCustomer, w, d, c)
	}
	return tables.Num(must(DistrictKey(w, d)).Num()<<customerBits | uint64(c)), nil
}

// HistoryKey is the primary key of HISTORY: w(20) | d(4) | serial(40), where
// the payment was made. The specification gives the table no key (clause
// 1.3.1); the serial number within the district makes one.
func HistoryKey(w, d, serial int64) (tables.Key, error) {
	if !keyFits(w, MaxWarehouses) || !keyFits(d, Districts) || !keyFits(serial, MaxHistory) {
		return tables.Key{}, keyError(TableHistory, w, d, serial)
	}
	return tables.Num(must(DistrictKey(w, d)).Num()<<serialBits | uint64(serial)), nil
}

// ItemKey is the primary key of ITEM: i.
func ItemKey(i int64) (tables.Key, error) {
	if !keyFits(i, MaxItems) {
		return tables.Key{}, keyError(TableItem, i)
	}
	return tables.Num(uint64(i)), nil
}

// StockKey is the primary key of STOCK: w(20) | i(17).
func StockKey(w, i int64) (tables.Key, error) {
	if !keyFits(w, MaxWarehouses) || !keyFits(i, MaxItems) {
		return tables.Key{}, keyError(TableStock, w, i)
	}
	return tables.Num(uint64(w)<<itemBits | uint64(i)), nil
}

// OrderKey is the primary key of ORDERS and of NEW_ORDER: w(20) | d(4) | o(28).
func OrderKey(w, d, o int64) (tables.Key, error) {
	if !keyFits(w, MaxWarehouses) || !keyFits(d, Districts) || !keyFits(o, MaxOrders) {
		return tables.Key{}, keyError(TableOrders, w, d, o)
	}
	return tables.Num(must(DistrictKey(w, d)).Num()<<orderBits | uint64(o)), nil
}

// OrderLineKey is the primary key of ORDER_LINE: w(20) | d(4) | o(28) | line(4).
func OrderLineKey(w, d, o, line int64) (tables.Key, error) {
	if !keyFits(w, MaxWarehouses) || !keyFits(d, Districts) || !keyFits(o, MaxOrders) || !keyFits(line, MaxLines) {
		return tables.Key{}, keyError(TableOrderLine, w, d, o, line)
	}
	return tables.Num(must(OrderKey(w, d, o)).Num()<<lineBits | uint64(line)), nil
}

// lastNameRange is the range of the index of customers by last name that
// holds all customers of a district with that digest of c_last. Other names
// may share the digest, so readers compare c_last itself.
func lastNameRange(w, d int64, digest uint64) (lo, hi tables.Key) {
	from := must(DistrictKey(w, d)).Num()<<lastNameBits | digest&(1<<lastNameBits-1)
	from <<= customerBits
	return tables.Num(from), tables.Num(from | MaxCustomers)
}

// customerOrdersRange is the range of the index of orders by customer that
// holds all orders of customers c to cLast, of each the latest first.
func customerOrdersRange(w, d, c, cLast int64) (lo, hi tables.Key) {
	return tables.Num(must(CustomerKey(w, d, c)).Num() << orderBits),
		tables.Num(must(CustomerKey(w, d, cLast)).Num()<<orderBits | MaxOrders)
}

// customerOrderID returns the O_ID in a key of the index of orders by customer.
func customerOrderID(key tables.Key) int64 { return MaxOrders - int64(key.Num()&MaxOrders) }

// orderLinesRange is the range of ORDER_LINE that holds the lines of orders o to oLast.
func orderLinesRange(w, d, o, oLast int64) (lo, hi tables.Key) {
	return must(OrderLineKey(w, d, o, 1)), must(OrderLineKey(w, d, oLast, MaxLines))
}
