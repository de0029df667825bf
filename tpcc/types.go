package tpcc

import "fmt"

// Type is one of the five transactions (clauses 2.4 to 2.8).
type Type uint8

// Transaction types.
const (
	NewOrder Type = iota
	Payment
	OrderStatus
	Delivery
	StockLevel
	typeCount
)

// Types has all types, in the order of the specification's clauses.
var Types = [typeCount]Type{NewOrder, Payment, OrderStatus, Delivery, StockLevel}

var typeNames = [typeCount]string{"NEW_ORDER", "PAYMENT", "ORDER_STATUS", "DELIVERY", "STOCK_LEVEL"}

// String returns the name that reports use, such as "NEW_ORDER".
func (t Type) String() string {
	if t >= typeCount {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return typeNames[t]
}
