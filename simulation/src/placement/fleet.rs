//! The cells, and which one each tenant lives in.

use super::demand::Demand;

/// One cell: its place in the list is its number, for ever.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// How many cells of ordinary size it is worth.
    pub weight: f64,
    pub is_lost: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    pub cells: Vec<Cell>,
    /// By tenant; `None` until it is made, and while its cell is lost.
    homes: Vec<Option<usize>>,
}

impl Fleet {
    pub fn new(weights: &[f64], tenants: usize) -> Self {
        let cells = weights.iter().map(|&weight| Cell { weight, is_lost: false }).collect();
        Self { cells, homes: vec![None; tenants] }
    }

    pub fn home(&self, tenant: usize) -> Option<usize> {
        self.homes[tenant]
    }

    /// A move is this one entry: whoever asks before finds the old cell, whoever asks after the new one.
    pub fn settle(&mut self, tenant: usize, cell: usize) {
        self.homes[tenant] = Some(cell);
    }

    pub fn add(&mut self, weight: f64) {
        self.cells.push(Cell { weight, is_lost: false });
    }

    /// Takes a cell away; returns the tenants that have no home now.
    pub fn lose(&mut self, cell: usize) -> Vec<usize> {
        self.cells[cell].is_lost = true;
        let homeless = self.tenants_of(cell);
        for &tenant in &homeless {
            self.homes[tenant] = None;
        }
        homeless
    }

    pub fn tenants_of(&self, cell: usize) -> Vec<usize> {
        (0..self.homes.len()).filter(|&tenant| self.homes[tenant] == Some(cell)).collect()
    }

    /// The cells that one can live in.
    pub fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.cells.len()).filter(|&cell| !self.cells[cell].is_lost)
    }

    /// What each cell carries.
    pub fn loads(&self, demands: &[Demand]) -> Vec<Demand> {
        let mut loads = vec![Demand::default(); self.cells.len()];
        for (home, demand) in self.homes.iter().zip(demands) {
            if let Some(cell) = *home {
                loads[cell] = loads[cell].plus(demand);
            }
        }
        loads
    }

    /// How full a cell is under a load.
    pub fn share(&self, cell: usize, load: &Demand) -> f64 {
        load.share() / self.cells[cell].weight
    }
}
