package tpcc

// rowBytesMin is the memory of a row of each table at a data server, at least:
// its blocks or its share of a leaf, its entries in indexes, and its share of
// these. TestMemory compares it with what loads take.
var rowBytesMin = [tableCount]int64{
	tabCustomer:  795 + 119, // with its entry by last name
	tabHistory:   97,
	tabNewOrder:  44,
	tabOrders:    91 + 53, // with its entry by customer
	tabOrderLine: 97,
	tabItem:      155,
	tabStock:     411,
}

// MemoryMin returns the memory, in bytes, that the initial population takes in
// a partition, of so many in all, at least. What it really takes is 1 to 4 %
// more for the specification's cardinalities.
func (c LoadConfig) MemoryMin(partition, partitions int) int64 {
	s := c.Scale.orDefault()
	warehouses := (c.Warehouses - int64(partition) + int64(partitions) - 1) / int64(partitions) // warehouse w is in partition (w-1) mod partitions
	return warehouses*s.warehouseBytesMin() + s.Items*rowBytesMin[tabItem]
}

// WarehousesMax returns how many warehouses of a scale fit into so many
// partitions with so many bytes each, at most.
func (s Scale) WarehousesMax(partitions int, bytes int64) int64 {
	s = s.orDefault()
	return max(bytes-s.Items*rowBytesMin[tabItem], 0) / s.warehouseBytesMin() * int64(partitions)
}

func (s Scale) warehouseBytesMin() int64 {
	const meanLines = (MinLines + MaxLines) / 2
	customer := rowBytesMin[tabCustomer] + rowBytesMin[tabHistory] + rowBytesMin[tabOrders] + meanLines*rowBytesMin[tabOrderLine]
	return Districts*(s.Customers*customer+s.Undelivered*rowBytesMin[tabNewOrder]) + s.Items*rowBytesMin[tabStock]
}
